"""Errors of the Hugging Face hub as StatetrimError, each in one sentence."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import StatetrimError
from ..file_names import CONFIG
from ..space import NoSpace

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)


class HubUnreachable(Exception):
    """The hub cannot be reached; callers fall back to the local cache."""


@contextmanager
def explain_hub_errors(repo: str, revision: str | None = None) -> Iterator[None]:
    """Within, answers of the hub that are errors become StatetrimError, and failed connections
    HubUnreachable, which is also raised at once if HF_HUB_OFFLINE is set.

    Errors of the disk, and those that do not come from the hub, are raised unchanged.
    """
    from huggingface_hub import errors, is_offline_mode

    if is_offline_mode():
        raise HubUnreachable("HF_HUB_OFFLINE is set")
    try:
        yield
    except (StatetrimError, NoSpace):
        raise
    except errors.GatedRepoError:
        raise StatetrimError(
            f"{repo} is gated: accept its terms at https://huggingface.co/{repo}, and "
            f"log in with: hf auth login"
        ) from None
    except errors.RepositoryNotFoundError:
        raise StatetrimError(
            f"{repo} is neither a directory here nor a model on the hub that you may read; "
            f"check its name, or log in with: hf auth login"
        ) from None
    except errors.RevisionNotFoundError:
        raise StatetrimError(f"{repo} has no revision {revision!r}") from None
    except errors.LocalEntryNotFoundError:
        raise HubUnreachable("the hub cannot be reached") from None
    except errors.EntryNotFoundError as error:
        address = str(getattr(getattr(error, "response", None), "url", ""))
        name = address.partition("?")[0].rpartition("/")[2] or "file of that name"
        reason = ", so it cannot be used as a model" if name == CONFIG else ""
        raise StatetrimError(f"{repo} has no {name}{reason}") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "an error")
        raise StatetrimError(f"the hub answers {status} for {repo}; try again later") from None
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise
        raise HubUnreachable("the hub cannot be reached") from None
    except Exception as error:
        # Of the HTTP library, which differs between versions of huggingface_hub.
        if "http" not in type(error).__module__ and "requests" not in type(error).__module__:
            raise
        raise HubUnreachable("the hub cannot be reached") from None
