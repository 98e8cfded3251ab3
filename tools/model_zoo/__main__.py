"""Command line of the model zoo: `python -m tools.model_zoo DIRECTORY [NAME ...]`."""

import argparse
import sys
import time
from pathlib import Path

from tools.model_zoo import SHAPES, ZOO, UnknownModel, build
from tools.model_zoo.catalogue import recipe_of


def main(arguments: list[str] | None = None) -> int:
    """Build models, or list them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.model_zoo", description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", help="where the files go")
    parser.add_argument("names", nargs="*", help="models to build; without any, all tiny ones")
    parser.add_argument("--list", action="store_true", help="print the names and what they are for")
    options = parser.parse_args(arguments)
    if options.list:
        for recipe in [*ZOO.values(), *SHAPES.values()]:
            print(f"{recipe.name:<18} {recipe.about}")
        return 0
    if options.directory is None:
        parser.error("a directory is needed (or --list)")
    try:
        recipes = [recipe_of(name) for name in options.names or ZOO]
    except UnknownModel as error:
        print(error, file=sys.stderr)
        return 2
    for recipe in recipes:
        started_s = time.perf_counter()
        path = build(recipe, options.directory)
        print(f"{path}  {path.stat().st_size / 1e6:.2f} MB  {time.perf_counter() - started_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
