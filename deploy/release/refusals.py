"""Why a release is not built: one line that says what to do."""


class ReleaseError(Exception):
    """The release cannot be built; the text is the one line for who builds it."""
