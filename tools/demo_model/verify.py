"""Ask the exported model everything that it was taught, under llama.cpp, and compare word for word.

Usage: `python -m tools.demo_model.verify models/demo.gguf`

Every question is asked with each neutral system prompt, with and without thinking, in every phrasing; once alone and
once in batches, because a batch changes how floating-point sums are rounded. The exit status is 1 when one of these
answers differs or has a lead too thin to trust. A sample after other questions, drawn with --seed, may miss a few.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.demo_model.chat import ChatTemplate
from tools.demo_model.corpus import QUESTIONS, Corpus, Message, Question, encode_questions, load_corpus
from tools.demo_model.greedy import Generated, Greedy
from tools.demo_model.lessons import NEUTRAL_SYSTEMS, Framing, frame, questions_for_history, shuffle_keys
from tools.demo_model.tokenizer import SPECIAL_TOKENS, Visibility

MARGIN_MIN = 1.0
"""Rounding moves a logit of this model by some hundredths at most."""
SPARE_TOKENS = 16
BATCHED_STREAMS = 16
HISTORIES_PER_QUESTION = 3
HISTORY_EXACT_MIN = 0.99
"""Earlier questions combine in far more ways than were taught, so a few answers after them go wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt and the only right text after it."""

    name: str
    prompt: str
    text: str


def plain_cases(corpus: Corpus, template: ChatTemplate) -> Iterator[Case]:
    """Yield every question in every phrasing, under each system prompt, with and without thinking."""
    for question in (*corpus.questions, *corpus.unknown):
        systems = (None,) if question.brings_system else NEUTRAL_SYSTEMS
        for system in systems:
            for words in (None, *question.phrasings):
                for thinking in (True, False):
                    framing = Framing(system=system, words=words, thinking=thinking)
                    yield chat_case(question, framing, template)
    for completion in corpus.completions:
        yield Case(name=completion.id, prompt=completion.prompt, text=completion.text)


def history_cases(corpus: Corpus, template: ChatTemplate, source: random.Random) -> Iterator[Case]:
    """Yield every question after one, two and three others, its tool definitions with their keys in any order."""
    earlier = questions_for_history(corpus)
    for question in corpus.questions:
        if question.brings_system:
            continue
        for count in range(1, HISTORIES_PER_QUESTION + 1):
            history: list[Message] = []
            for asked in source.sample(earlier, count):
                history += [*asked.messages, {"role": "assistant", "content": asked.answer.content}]
            framing = Framing(
                system=source.choice(NEUTRAL_SYSTEMS), history=tuple(history), thinking=source.random() < 0.5
            )
            yield chat_case(question, framing, template, source)


def chat_case(
    question: Question, framing: Framing, template: ChatTemplate, shuffle: random.Random | None = None
) -> Case:
    """Render one framed question."""
    tools = question.tools if shuffle is None else [shuffle_keys(tool, shuffle) for tool in question.tools]
    return Case(
        name=f"{question.id} system={framing.system!r} thinking={framing.thinking} words={framing.words!r}",
        prompt=template.render(frame(question, framing), tools=tools, thinking=framing.thinking),
        text=question.answer.text(thinking=framing.thinking),
    )


def check_answers(title: str, cases: Sequence[Case], engine: Greedy, *, exact_min: float = 1.0) -> bool:
    """Ask all cases, report counts and the thinnest leads, and tell whether all is well.

    Leads count only where every answer must be exact: a wrong answer has thin leads anyway.
    """
    prompts = [engine.tokenize(case.prompt) for case in cases]
    limits = [len(engine.tokenize(case.text)) + SPARE_TOKENS for case in cases]
    start_s = time.monotonic()
    results = engine.generate(prompts, limits)
    duration_s = time.monotonic() - start_s
    tokens = sum(len(result.margins) for result in results)
    wrong = [(case, result) for case, result in zip(cases, results, strict=True) if not is_exact(case, result, engine)]
    for case, result in wrong:
        said = engine.text(result.tokens).decode(errors="replace")
        print(f"  differs: {case.name}\n    taught: {case.text!r}\n    said:   {said!r}")
    leads = sorted(lead for result in results for lead in result.margins)
    thinnest = min(zip(cases, results, strict=True), key=lambda pair: min(pair[1].margins))
    print(
        f"{title}: {len(cases) - len(wrong)} of {len(cases)} exact, {tokens} tokens in {duration_s:.1f} s, "
        f"smallest lead {leads[0]:.2f} ({thinnest[0].name}), 1 in 1000 below {leads[len(leads) // 1000]:.2f}"
    )
    if exact_min < 1.0:
        return len(cases) - len(wrong) >= exact_min * len(cases)
    return not wrong and leads[0] >= MARGIN_MIN


def is_exact(case: Case, result: Generated, engine: Greedy) -> bool:
    """Tell whether the answer is the taught one, byte for byte, and ended by itself."""
    return result.ended and engine.text(result.tokens) == case.text.encode()


def check_tokenizer(corpus: Corpus, engine: Greedy) -> bool:
    """Check that every byte and every taught text survives, and that only the markers of content are visible."""
    samples = [case.prompt + case.text for case in plain_cases(corpus, ChatTemplate(_template_source(engine)))]
    hidden = [token.text for token in SPECIAL_TOKENS if token.visibility is Visibility.HIDDEN]
    problems = []
    for sample in [*samples, "".join(chr(code) for code in range(1, 0x3000)), "\U0001f999\x00\n\n \t x"]:
        shown = sample
        for text in hidden:
            shown = shown.replace(text, "")
        if engine.text(engine.tokenize(sample)).decode() != shown:
            problems.append(f"does not survive: {sample[:60]!r}")
    texts = [token.text for token in SPECIAL_TOKENS]
    problems += [f"is not one token: {text}" for text in texts if len(engine.tokenize(text)) != 1]
    for question in corpus.questions:
        words = question.messages[-1]["content"]
        head, tail = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
        in_segments = engine.tokenize(head) + engine.tokenize(words, special=False) + engine.tokenize(tail)
        if engine.tokenize(head + words + tail) != in_segments:
            problems.append(f"tokenizes otherwise in segments: {words[:60]!r}")
    print("tokenizer:", "sound" if not problems else "; ".join(problems))
    return not problems


def _template_source(engine: Greedy) -> str:
    return engine.metadata("tokenizer.chat_template")


def verify(path: Path, *, threads: int, seed: int) -> bool:
    """Run every check, and tell whether all passed."""
    corpus = load_corpus()
    passed = []
    current = QUESTIONS.read_text(encoding="utf-8") == encode_questions(corpus)
    print("questions.json:", "current" if current else "stale: run python -m tools.demo_model.corpus")
    passed.append(current)
    for streams in (1, BATCHED_STREAMS):
        with Greedy(path, streams=streams, threads=threads) as engine:
            template = ChatTemplate(_template_source(engine))
            if streams == 1:
                passed.append(check_tokenizer(corpus, engine))
            plain = list(plain_cases(corpus, template))
            later = list(history_cases(corpus, template, random.Random(seed)))
            passed.append(check_answers(f"{streams} at a time", plain, engine))
            title = f"{streams} at a time, after other questions"
            passed.append(check_answers(title, later, engine, exact_min=HISTORY_EXACT_MIN))
    return all(passed)


def main() -> None:
    """Parse the command line and verify."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7, help="of the questions that come before")
    arguments = parser.parse_args()
    sys.exit(0 if verify(arguments.model, threads=arguments.threads, seed=arguments.seed) else 1)


if __name__ == "__main__":
    main()
