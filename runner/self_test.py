"""`python -m runner self-test`: whether the engine of this build computes here, and whether files are GGUF.

A process of its own, because what a compiler or a file did wrong shows as a signal that ends it.
"""

import argparse
import sys
from pathlib import Path

import orjson

from common.errors import BadModelFile
from runner.engine.bindings.gguf_header import check_model_file
from runner.engine.devices import devices
from runner.engine.devices.self_test import SelfTestFailed, compute

EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this mode."""
    parser.add_argument("--model", type=Path, metavar="PATH", help="compute with this small GGUF")
    parser.add_argument(
        "--files", action="store_true", help="check the GGUF files whose paths standard input has, a JSON list"
    )


def run(args: argparse.Namespace) -> int:
    """Print one JSON object on a line for each file, then one about the engine.

    0 success, 1 the engine does not compute; a signal where it cannot even say so.
    """
    if args.files:
        for path in orjson.loads(sys.stdin.buffer.read()):
            _print({"path": path, "trouble": _trouble(Path(path))})
        return 0
    report: dict[str, object] = {
        "build": devices.engine_build(),
        "backends": devices.backends(),
        "rpc": devices.has_rpc(),
        "computed": args.model is not None,
        "trouble": "",
    }
    try:
        if args.model is not None:
            compute(args.model)
    except SelfTestFailed as error:
        report |= {"computed": False, "trouble": str(error)}
    _print(report)
    return EXIT_FAILED if report["trouble"] else 0


def _trouble(path: Path) -> str:
    try:
        check_model_file(path)
    except BadModelFile as error:
        return error.message
    return ""


def _print(value: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()
