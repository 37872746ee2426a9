"""Check that the repository takes the publication, before any expensive work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from datamask.config.outputs import Publication
from datamask.errors import PublicationError, check_secrets
from datamask.publishing.retries import call_hub

ATTEMPTS = 3
WRITING_ROLES = ("admin", "write", "contributor")


def token_for(publication: Publication) -> str:
    """Return the token in HF_TOKEN.

    Raises:
        PublicationError: there is none. And as in `check_secrets`.
    """
    check_secrets()
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        raise PublicationError(
            "HF_TOKEN: not set; export a token with write access to "
            f"{publication.repository}, or set publication.dry_run"
        )
    return token


def check_access(publication: Publication) -> None:
    """Check that the token may write to the repository or create it; a dry run is not checked.

    Raises:
        PublicationError: the token is missing, invalid, read-only, or may not write there; or the
            repository is public or holds files of others, against the settings.
        HubUnavailableError: the Hub does not answer.
    """
    if publication.dry_run:
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    from datamask.publishing.upload import Upload

    token = token_for(publication)
    api: Any = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
    name = publication.repository
    who = call_hub("HF_TOKEN: checking the token", api.whoami, ATTEMPTS)
    role = who.get("auth", {}).get("accessToken", {}).get("role", "")
    if role == "read":
        raise PublicationError(
            f"HF_TOKEN: a read token of {who['name']}; create one with write access to {name}"
        )

    def may_write() -> bool:
        try:
            api.auth_check(name, repo_type="dataset", write=True)
        except RepositoryNotFoundError:
            return False
        return True

    if call_hub(f"{name}: checking write access", may_write, ATTEMPTS):
        call_hub(f"{name}: listing main", Upload(publication, Path(), [], token).compare, ATTEMPTS)
        return
    owner = name.partition("/")[0]
    own = {who["name"]} | {
        organisation["name"]
        for organisation in who.get("orgs", [])
        if organisation.get("roleInOrg", "write") in WRITING_ROLES
    }
    if owner not in own:
        raise PublicationError(
            f"{name}: missing or not visible to this token, and {who['name']} may not create it "
            f"(may write as {', '.join(sorted(own))}); change publication.repository or HF_TOKEN"
        )
