"""The files of a model on a command line, for the modes that load one."""

import argparse
from pathlib import Path

from common.errors import InvalidRequest
from runner.core.model.model_files import AdapterFile, ModelFiles, parse_adapter


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """--model, --more, --projector, --adapter and --draft."""
    parser.add_argument("--model", required=True, type=Path, metavar="PATH", help="GGUF file")
    parser.add_argument(
        "--more",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="the next file of a model that is split; given once for each, in order",
    )
    parser.add_argument("--projector", type=Path, metavar="PATH", help="GGUF file of the vision projector")
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        type=_adapter,
        metavar="PATH=SCALE",
        help="LoRA adapter, applied to every request; may be given again",
    )
    parser.add_argument(
        "--draft",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="GGUF file of a model that guesses tokens; of one that is split, given once for each file, in order",
    )


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
