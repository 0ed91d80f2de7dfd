"""The one exception that jaxdp raises when it is asked for something that it can't do truthfully."""


class UsageError(ValueError):
    """A value or a combination that jaxdp refuses; the message names it and says what to change.

    Every check that raises it runs on the host, before anything is compiled. The command line prints the message as one
    line and exits with code 2.
    """
