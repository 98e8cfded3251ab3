"""Whether the demo model that comes with Puna is written into the user's model directory. Pure."""


def should_install_demo(*, shipped: str, installed: str | None, present: str | None) -> bool:
    """Decide by digests: of the shipped file, of the one installed earlier, of the file that lies there now.

    A file that the user deleted or replaced stays as the user left it; an untouched older demo is brought up to date.
    """
    if installed is None:
        return present is None
    return installed != shipped and present == installed
