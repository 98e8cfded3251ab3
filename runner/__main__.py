"""`python -m runner MODE …`: one program, several modes. A mode's module is imported only when it is asked for."""

import argparse
import sys
from importlib import import_module

from common.sandbox.confinement import confine

MODES = {
    "host": ("runner.host.app", "own this node: start, watch and stop runners"),
    "serve": ("runner.serve.app", "load one model and serve it"),
    "probe": ("runner.probe", "list the devices that the engine can use"),
    "inspect": ("runner.inspect", "describe a GGUF file from its header"),
    "gpu-memory": ("runner.gpu_memory", "print what the drivers say about GPU memory, every second"),
    "rpc": ("runner.rpc", "lend devices of this node to a runner on another one"),
    "self-test": ("runner.self_test", "find out whether the engine computes here"),
    "measure": ("runner.measure", "count the memory of a model with a layout, without loading it"),
    "zygote": ("runner.zygote", "import what runners need, and fork into them for the host"),
}
# These read files, graphs (`rpc`) or answers of lent devices (`probe`) that may be hostile.
_CONFINED = frozenset({"inspect", "measure", "serve", "probe", "rpc"})


def main() -> int:
    """Dispatch to the mode; its exit status is ours. 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="python -m runner")
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    if chosen in _CONFINED:
        confine(sys.argv[2:])
    modes = parser.add_subparsers(metavar="MODE", required=True)
    for name, (module_name, summary) in MODES.items():
        mode = modes.add_parser(name, help=summary, description=summary)
        if name == chosen:
            module = import_module(module_name)
            module.add_arguments(mode)
            mode.set_defaults(run=module.run)
    args = parser.parse_args()
    status: int = args.run(args)
    return status


if __name__ == "__main__":
    sys.exit(main())
