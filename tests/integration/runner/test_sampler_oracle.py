"""Our grammars, DRY, XTC and sigma filter against llama.cpp's own."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest

from common.spec.sampling import Sampling
from runner.core.sequence.dry import Dry, find_breakers
from runner.core.sequence.penalties import within_sigma
from runner.engine.batched.sampler import create_chain
from tests.engines.formulas import log_softmax, without_top
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.sampler_oracle import Oracle
from tests.unit.runner.random_grammars import random_grammars

GRAMMARS = [
    'root ::= ("yes" | "no" | "perhaps") (", " [a-z]{1,8})* "."',
    "root ::= [^a-m\\n]{3,20}",
    'root ::= expression\nexpression ::= term ([-+*/] term)*\nterm ::= [0-9]+ | "(" expression ")"',
    'root ::= ("é" | "日本" | [à-ü])+ " " .{0,5}',
    'root ::= "- " [^\\n]+ "\\n" root | "end"',
    'root ::= ("ab" | "abc" | "a" "b"? "c"?)* "!"?',
    'root ::= [a-c] root | "b" other | ""\nother ::= [b-d] root | "x"',
    'root ::= item ("," root)?\nitem ::= "[" (item ("," item)*)? "]" | [a-z]+',
]


@pytest.fixture(scope="module", params=["dense", "swa"])
def model(request: pytest.FixtureRequest, zoo: Zoo) -> Path:
    return zoo(request.param)


@pytest.mark.behaviour("B-22")
def test_random_answers_under_grammars_are_allowed_step_by_step_by_llama_cpp(model: Path) -> None:
    given = json.dumps({"path": str(model), "texts": [*GRAMMARS, *random_grammars(40)], "seeds": 4})
    # A token that llama.cpp does not allow would end the child.
    child = subprocess.run(
        [sys.executable, "-m", "tests.integration.runner.sampler_oracle"],
        input=given,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert child.returncode == 0, child.stderr[-2000:]
    assert int(child.stdout) > 1_500


@pytest.mark.parametrize("seed", range(6))
def test_dry_lowers_what_llama_cpp_lowers(seed: int, model: Path) -> None:
    oracle = Oracle(model)
    vocabulary = oracle.vocabulary
    random = np.random.default_rng(seed)
    said = random.choice(random.integers(3, vocabulary.size, 6), 300).tolist()
    texts = ["\n", ":", vocabulary.pieces[said[0]].decode(errors="ignore") or "x", "e t"]
    parameters = Sampling(
        dry_multiplier=0.8,
        dry_base=1.75,
        dry_allowed_length=1 + seed % 3,
        dry_penalty_last_n=(40, 1000)[seed % 2],
    )
    found = find_breakers(
        texts, pieces=vocabulary.pieces, tokenize=lambda text: vocabulary.tokenize(text, parse_special=False)
    )
    breakers = (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
    judge = llama.llama_sampler_init_dry(
        oracle.pointer,
        parameters.dry_multiplier,
        parameters.dry_base,
        parameters.dry_allowed_length,
        parameters.dry_penalty_last_n,
        breakers,
        len(texts),
    )
    ours = Dry(parameters, found, context_tokens=1000, earlier=said[:100])
    for token_id in said[:100]:
        llama.llama_sampler_accept(judge, token_id)
    lowered = 0
    for token_id in said[100:]:
        logits = np.zeros(vocabulary.size, np.float32)
        ours.apply(logits)
        np.testing.assert_allclose(logits, oracle.apply(judge, np.zeros(vocabulary.size, np.float32)), rtol=1e-5)
        lowered += int((logits < 0).any())
        ours.accept(token_id)
        llama.llama_sampler_accept(judge, token_id)
    llama.llama_sampler_free(judge)
    assert lowered > 20


@pytest.mark.parametrize("seed", range(5))
def test_xtc_and_the_sigma_filter_keep_what_llama_cpp_keeps(seed: int, model: Path) -> None:
    oracle = Oracle(model)
    logits = (np.random.default_rng(seed).standard_normal(oracle.vocabulary.size) * 3).astype(np.float32)
    for threshold in (0.01, 0.05, 0.1, 0.5):
        judge = llama.llama_sampler_init_xtc(1.0, threshold, 1, 0)
        kept = np.isfinite(oracle.apply(judge, logits))
        np.testing.assert_array_equal(np.isfinite(without_top(logits, threshold)), kept)
        llama.llama_sampler_free(judge)
    for sigmas in (0.5, 1.0, 2.0):
        judge = llama.llama_sampler_init_top_n_sigma(sigmas)
        np.testing.assert_array_equal(within_sigma(logits, sigmas), np.isfinite(oracle.apply(judge, logits)))
        llama.llama_sampler_free(judge)


@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_a_dynamic_temperature_follows_the_entropy_of_the_row(spread: float, exponent: float, model: Path) -> None:
    oracle = Oracle(model)
    logits = (np.random.default_rng(1).standard_normal(oracle.vocabulary.size) * spread).astype(np.float32)
    sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, dynatemp_range=0.6, dynatemp_exponent=exponent)
    chain = ctypes.cast(create_chain(sampling, excludes=False), llama.llama_sampler_p_ctypes)
    after = oracle.apply(chain, logits)
    llama.llama_sampler_free(chain)
    shares = log_softmax(logits)
    entropy = -float((np.exp(shares) * shares).sum()) / np.log(logits.size)
    temperature = 0.4 + (1.6 - 0.4) * entropy**exponent
    np.testing.assert_allclose(after, logits / temperature, rtol=1e-3, atol=1e-4)
