"""Train the demo model from nothing, and write its checkpoint.

Usage: `python -m tools.demo_model.train --output FOLDER`
"""

import argparse
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tools.demo_model.chat import load_template
from tools.demo_model.corpus import load_corpus
from tools.demo_model.lessons import Lesson, LessonMaker
from tools.demo_model.model import Llama, Shape
from tools.demo_model.tokenizer import train_tokenizer

CHECKPOINT = "checkpoint.pt"
TOKENIZER = "tokenizer.json"
NOT_TAUGHT = -100  # cross_entropy skips this target


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Recipe of the training. Found by trial: the shortest that leaves wide margins."""

    seed: int = 1
    epochs: int = 80
    batch_tokens: int = 1280
    learning_rate: float = 5e-3
    warm_up: float = 0.05
    weight_decay: float = 0.02
    gradient_norm_max: float = 1.0
    margin: float = 10.0
    """The lead in logits that each taught token should have over every other."""
    margin_weight: float = 0.05


def batches(lessons: Sequence[Lesson], tokens_max: int) -> Iterator[list[Lesson]]:
    """Group lessons of similar length so that little of a batch is padding."""
    batch: list[Lesson] = []
    for lesson in sorted(lessons, key=lambda lesson: len(lesson.tokens)):
        if batch and (len(batch) + 1) * len(lesson.tokens) > tokens_max:
            yield batch
            batch = []
        batch.append(lesson)
    if batch:
        yield batch


def pad(lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, int64[rows, tokens]; attention is causal, so padding at the end needs no mask."""
    width = max(len(lesson.tokens) for lesson in lessons) - 1
    inputs = torch.zeros((len(lessons), width), dtype=torch.long)
    targets = torch.full((len(lessons), width), NOT_TAUGHT)
    for row, lesson in enumerate(lessons):
        tokens = torch.tensor(lesson.tokens)
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        taught = torch.where(torch.tensor(lesson.taught), tokens, NOT_TAUGHT)
        targets[row, : len(tokens) - 1] = taught[1:]
    return inputs, targets


def margins(logits: Tensor, targets: Tensor) -> Tensor:
    """Return by how much each target leads the best other token: float32[targets]."""
    chosen = logits.gather(-1, targets[:, None])
    others = logits.scatter(-1, targets[:, None], float("-inf"))
    return chosen.squeeze(-1) - others.amax(dim=-1)


def learn(model: Llama, batch: Sequence[Lesson], recipe: Recipe) -> tuple[Tensor, float, float]:
    """Return the loss to descend, and for the report the cross-entropy and the smallest margin."""
    inputs, targets = pad(batch)
    is_taught = targets != NOT_TAUGHT
    logits, targets = model(inputs)[is_taught], targets[is_taught]
    leads = margins(logits, targets)
    surprise = functional.cross_entropy(logits, targets)
    thinness = functional.relu(recipe.margin - leads).mean()
    return surprise + recipe.margin_weight * thinness, surprise.item(), leads.min().item()


def make_optimizers(model: Llama, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, which learns rare tokens in fewer steps, and AdamW for the rest."""
    matrices = [parameter for parameter in model.layers.parameters() if parameter.dim() == 2]
    rest = [parameter for parameter in model.parameters() if not any(parameter is matrix for matrix in matrices)]
    return [
        torch.optim.Muon(
            matrices, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(rest, lr=recipe.learning_rate, weight_decay=0.0, betas=(0.9, 0.95)),
    ]


def learning_rate_share(progress: float, warm_up: float) -> float:
    """Return the share of the full rate at `progress` in [0, 1]: a short rise, then a cosine to nothing."""
    if progress < warm_up:
        return progress / warm_up
    return 0.5 + 0.5 * math.cos(math.pi * (progress - warm_up) / (1 - warm_up))


def train(recipe: Recipe, shape: Shape, output: Path) -> None:
    """Train, report every epoch, and save tokenizer and weights under `output`."""
    torch.manual_seed(recipe.seed)
    source = random.Random(recipe.seed)
    corpus = load_corpus()
    tokenizer = train_tokenizer(corpus)
    maker = LessonMaker(corpus, tokenizer, load_template(), source)
    epochs = [list(batches(list(maker.epoch()), recipe.batch_tokens)) for _ in range(recipe.epochs)]
    steps = sum(len(epoch) for epoch in epochs)
    model = Llama(shape)
    optimizers = make_optimizers(model, recipe)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {steps} steps", flush=True)
    start_s, step = time.monotonic(), 0
    for number, epoch in enumerate(epochs, start=1):
        source.shuffle(epoch)
        surprises, leads = [], []
        for batch in epoch:
            loss, surprise, lead = learn(model, batch, recipe)
            share = learning_rate_share((step := step + 1) / (steps + 1), recipe.warm_up)
            model.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_norm_max)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = recipe.learning_rate * share
                optimizer.step()
            surprises.append(surprise)
            leads.append(lead)
        print(
            f"epoch {number}: cross-entropy {sum(surprises) / len(surprises):.5f}, "
            f"smallest margin {min(leads):.2f}, {time.monotonic() - start_s:.0f} s",
            flush=True,
        )
    output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(output / TOKENIZER))
    torch.save({"shape": asdict(shape), "weights": model.state_dict()}, output / CHECKPOINT)


def main() -> None:
    """Parse the command line and train."""
    recipe = Recipe()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder for the checkpoint and the tokenizer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=recipe.seed)
    parser.add_argument("--epochs", type=int, default=recipe.epochs)
    parser.add_argument("--learning-rate", type=float, default=recipe.learning_rate)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    recipe = Recipe(seed=arguments.seed, epochs=arguments.epochs, learning_rate=arguments.learning_rate)
    train(recipe, Shape(), arguments.output)


if __name__ == "__main__":
    main()
