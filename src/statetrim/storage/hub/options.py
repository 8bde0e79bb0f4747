"""The options of `push`."""

from ...options import option, options


@options
class PushOptions:
    """The options of `push`."""

    repo: str = option(help="Repository on the hub, OWNER/NAME.", argument=True, kw_only=False)
    public: bool = option(default=False, help="Make the repository public; private by default.")
