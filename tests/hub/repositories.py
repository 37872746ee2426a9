"""Requests of the Hub on loopback for repositories: rights, creation, branches and tags."""

from typing import Any

import yaml

from tests.hub.handler import Handler, Refused
from tests.hub.state import Repository


class Repositories(Handler):
    """Answers what concerns a repository and not its files."""

    def on_whoami(self) -> Any:
        """The role of the token, in all and in its organisations."""
        token = {"role": self.hub.role}
        orgs = [{"name": name, "roleInOrg": role} for name, role in self.hub.orgs.items()]
        return {"name": "me", "orgs": orgs, "auth": {"accessToken": token}}

    def on_access(self, repository: Repository) -> Any:
        """Refuse a token without write access."""
        if self.hub.role == "read" or self.name_of(repository) in self.hub.closed:
            raise Refused(403, "You have no write access to this repository")
        return {}

    def on_create(self) -> Any:
        """Create a repository with the Hub's first commit."""
        asked = self.json()
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        url = {"url": f"{self.hub.endpoint}/datasets/{name}"}
        if name in self.hub.repositories:
            raise Refused(409, "You already created this dataset repo", body=url)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.repositories[name] = Repository(private)
        self.hub.repositories[name].commit(
            "main", {".gitattributes": self.hub.store(b"*.parquet filter=lfs\n*.png filter=lfs\n")}
        )
        return url

    def on_validate(self) -> Any:
        """Refuse a card whose header is not YAML."""
        header = self.json()["content"].split("---")[1]
        if not isinstance(yaml.safe_load(header), dict):
            raise Refused(400, "the header is not YAML")
        return {"errors": [], "warnings": []}

    def on_info(self, repository: Repository, rev: str = "main") -> Any:
        """Name, commit, privacy and file names of a revision."""
        oid = self.commit_of(repository, rev)
        siblings = [{"rfilename": path} for path in repository.commits[oid]]
        name = self.name_of(repository)
        return {"id": name, "sha": oid, "private": repository.private, "siblings": siblings}

    def on_refs(self, repository: Repository) -> Any:
        """All branches and tags."""

        def listed(kind: str, refs: dict[str, str]) -> list[dict[str, str]]:
            return [
                {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": oid}
                for name, oid in sorted(refs.items())
            ]

        branches = listed("heads", repository.branches)
        return {"branches": branches, "tags": listed("tags", repository.tags), "converts": []}

    def on_tag(self, repository: Repository, rev: str) -> Any:
        """Create a tag."""
        tag = self.json()["tag"]
        if tag in repository.tags:
            raise Refused(409, "Tag reference exists already")
        repository.tags[tag] = self.commit_of(repository, rev)
        return {}

    def on_untag(self, repository: Repository, rev: str) -> Any:
        """Delete a tag."""
        if repository.tags.pop(rev, None) is None:
            raise Refused(404, f"Tag {rev} not found", "RevisionNotFound")
        return {}

    def on_branch(self, repository: Repository, rev: str) -> Any:
        """Create a branch."""
        if rev in repository.branches:
            raise Refused(409, "Reference already exists")
        start = self.json().get("startingPoint", "main")
        repository.branches[rev] = self.commit_of(repository, start)
        return {}

    def on_unbranch(self, repository: Repository, rev: str) -> Any:
        """Delete a branch."""
        if repository.branches.pop(rev, None) is None:
            raise Refused(404, f"Branch {rev} not found", "RevisionNotFound")
        return {}
