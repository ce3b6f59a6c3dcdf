"""What data of the user's own has in common with a dataset that is registered."""

from idiolect.core.form import PLAIN, Form


class OwnSource:
    """Data that lies where the user says: it is neither looked for nor downloaded."""

    hub_repository = None
    expected: tuple[int, int] | None = None  # train and test samples, known before they are read
    name: str
    task = "classification"  # known before the data is read, where the user says it

    @property
    def sample_form(self) -> Form:
        """What the numbers of a sample mean, where that is known before the data is made."""
        return PLAIN

    def find(self) -> str:
        return self.name

    def not_found(self) -> str:
        return f"data '{self.name}' is not there"
