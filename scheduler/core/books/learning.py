"""What was learned about margins outlives the leader that learned it: the next one begins with it."""

from scheduler.core.books.books import Books
from scheduler.core.books.effects import SaveMargins
from scheduler.core.sizes.margins import NO_MARGINS, Margins


def keep(books: Books, margins: Margins) -> None:
    """Plan with these from now on; what is new of them is written down. Nothing waits for that."""
    news = margins.since(books.margins)
    books.margins = margins
    if books.leadership is not None and news != NO_MARGINS:
        books.emit(SaveMargins(fence=books.leadership.fence, margins=news))


def take_over(books: Books, stored: Margins, fence: int) -> None:
    """Lead from here on, with what the store knows.

    What it does not know was learned in a term of ours before it forgot, and is written again. Where both know, a
    leader that only renews has learned since, and a new one has not.
    """
    own = books.margins
    books.margins = stored.with_all(own) if books.leadership is not None else own.with_all(stored)
    news = books.margins.since(stored)
    if news != NO_MARGINS:
        books.emit(SaveMargins(fence=fence, margins=news))
