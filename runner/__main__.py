"""`python -m runner MODE …`: one program, several modes. A mode's module is imported only when it is asked for."""

import argparse
import gc
import os
import sys
from importlib import import_module

from common.sandbox.confinement import OWN_USER, Limits, confine
from runner.core.model.split_files import FILES_MAX

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
_HEADER_BYTES = 4 * 1024**3
_HALF_OF_RAM = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
# These read files, graphs (`rpc`) or answers of lent devices (`probe`) that may be hostile. Headers that take long to
# describe are refused by their counts (`gguf_check.WORK_MAX`) and their texts (`description.DETAILS_BYTES_MAX`). A
# measurement maps no weights, but engines allocate recurrent states even to count them.
_MOST_MEMORY = max(_HEADER_BYTES, _HALF_OF_RAM)
CONFINED = {
    "inspect": Limits(cpu_s=2, open_files=64, memory_bytes=_HEADER_BYTES, opens_devices=False),
    "measure": Limits(cpu_s=20, open_files=FILES_MAX + 256, memory_bytes=_MOST_MEMORY),  # of a split model, all at once
    "probe": Limits(
        cpu_s=60 + (os.cpu_count() or 1), open_files=256, memory_bytes=_MOST_MEMORY
    ),  # a second on each core
    # These two run for as long as they are wanted, and their memory is what they are for.
    "rpc": Limits(open_files=256),
    "serve": Limits(starts_processes=True),  # the decoder of images; each client of a runner is an open file
}


def main() -> int:
    """Dispatch to the mode; its exit status is ours. 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="python -m runner")
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    if chosen in CONFINED:
        holds = chosen == "probe" and "--hold" in sys.argv  # all memory of a device, for as long as it is wanted
        confine(sys.argv[2:], Limits(open_files=256) if holds else CONFINED[chosen])
    modes = parser.add_subparsers(metavar="MODE", required=True)
    for name, (module_name, summary) in MODES.items():
        mode = modes.add_parser(name, help=summary, description=summary)
        if name in CONFINED:
            mode.add_argument(OWN_USER, action="store_true", help="as root: run as a user that no other process is")
        if name == chosen:
            module = import_module(module_name)
            module.add_arguments(mode)
            mode.set_defaults(run=module.run)
    args = parser.parse_args()
    gc.enable()  # see `common.telemetry.quick_start`
    status: int = args.run(args)
    return status


if __name__ == "__main__":
    import common.telemetry.quick_start  # noqa: F401

    sys.exit(main())
