"""The files of a model on a command line, for the modes that load one."""

import argparse
from collections.abc import Callable
from pathlib import Path

from common.errors import InvalidRequest
from runner.core.model.model_files import AdapterFile, ModelFiles, parse_adapter


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """--model, --more, --projector, --adapter and --draft."""
    parser.add_argument("--model", required=True, type=Path, metavar="PATH", help="GGUF file")

    def add_list(name: str, kind: Callable[[str], object], metavar: str, meaning: str) -> None:
        parser.add_argument(name, action="append", default=[], type=kind, metavar=metavar, help=meaning)

    add_list("--more", Path, "PATH", "the next file of a model that is split; given once for each, in order")
    parser.add_argument("--projector", type=Path, metavar="PATH", help="GGUF file of the vision projector")
    add_list("--adapter", _adapter, "PATH=SCALE", "LoRA adapter, applied to every request; may be given again")
    draft = "GGUF file of a model that guesses tokens; of one that is split, given once for each file, in order"
    add_list("--draft", Path, "PATH", draft)


def files_of(args: argparse.Namespace) -> ModelFiles:
    """Return the files that the arguments name."""
    return ModelFiles(
        model=args.model,
        more=tuple(args.more),
        projector=args.projector,
        adapters=tuple(args.adapter),
        draft=tuple(args.draft),
    )


def _adapter(text: str) -> AdapterFile:
    try:
        return parse_adapter(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(error.message) from error
