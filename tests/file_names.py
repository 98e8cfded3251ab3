"""Names of files as people have them, for tests."""

import os
import string

from hypothesis import strategies as st

# Names that C1 of the faults lists, and their relatives. None is hidden, and each fits a file system (255 bytes).
AWKWARD = (
    "my model (1).gguf",
    "模型.gguf",
    "模板.gguf",
    "gemma+x.gguf",
    "gemma x.gguf",
    "-lead.gguf",
    "--help.gguf",
    "m" * 85 + ".gguf",
    "m" * 250 + ".gguf",
    "é.gguf",
    "e\u0301.gguf",
    "Demo.gguf",
    "UPPER.GGUF",
    "upper.gguf",
    "upper.GgUf",
    "x..gguf",
    "[v1] {final}'\"`$(id);&|<>*?#%.gguf",
    "qwen3:8b.gguf",
    "a:b:c.gguf",
    "user@host.gguf",
    "llama🦙.gguf",
    "🦙.gguf",
    "two\nlines.gguf",
    "tab\tand\x1b[31mred.gguf",
    "right\u202eleft.gguf",
    os.fsdecode(b"latin-\xe9.gguf"),
    "ends-.gguf",
    "a\\b.gguf",
    "model.gguf.gguf",
    "x-00001-of-00002.gguf",
    " .gguf",
)

_CHARACTERS = st.one_of(
    st.sampled_from(string.ascii_letters + string.digits + "-_.:@+ ()[]"),
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]),
    st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"]),  # bytes that are not UTF-8
)


def _is_usable(name: str) -> bool:
    # What is hidden is not looked for; and parts of a split model share a name.
    return not name.startswith(".") and len(os.fsencode(name)) <= 255 and "-of-" not in name


def file_names() -> st.SearchStrategy[str]:
    """Return names of GGUF files that a file system takes."""
    stems = st.one_of(st.text(_CHARACTERS, min_size=1, max_size=100), st.sampled_from(AWKWARD))
    suffixes = st.sampled_from([".gguf", ".GGUF", ".Gguf"])
    return st.builds(lambda stem, suffix: stem + suffix, stems, suffixes).filter(_is_usable)
