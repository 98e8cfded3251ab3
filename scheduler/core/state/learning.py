"""Storage of learned margins, so that the next leader begins with them."""

from scheduler.core.sizes.margins import NO_MARGINS, Margins
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.effects import SaveMargins


def keep(state: ClusterState, margins: Margins) -> None:
    """Plan with these from now on; what is new of them is written down. Nothing waits for that."""
    news = margins.since(state.margins)
    state.margins = margins
    if state.leadership is not None and news != NO_MARGINS:
        state.emit(SaveMargins(fence=state.leadership.fence, margins=news))


def take_over(state: ClusterState, stored: Margins, fence: int) -> None:
    """Take the margins of the store as a new leader.

    What it does not know was learned in a term of ours before it forgot, and is written again. Where both know, a
    leader that only renews has learned since, and a new one has not.
    """
    own = state.margins
    state.margins = stored.with_all(own) if state.leadership is not None else own.with_all(stored)
    news = state.margins.since(stored)
    if news != NO_MARGINS:
        state.emit(SaveMargins(fence=fence, margins=news))
