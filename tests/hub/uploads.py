"""Requests of the Hub on loopback that upload: LFS, Xet and commits."""

import base64
import hashlib
import json
import shutil
from typing import Any

from tests.hub.handler import Handler, Refused
from tests.hub.state import Repository


class Uploads(Handler):
    """Takes contents by LFS or Xet, and commits that name them."""

    def on_preupload(self, repository: Repository, rev: str) -> Any:
        """Answer how each file must be uploaded, and the hash of an existing one."""
        held = repository.commits[self.commit_of(repository, rev)]
        answers = []
        for asked in self.json()["files"]:
            mode = "lfs" if asked["path"].endswith((".parquet", ".png")) else "regular"
            answer = {"path": asked["path"], "uploadMode": mode, "shouldIgnore": False}
            if asked["path"] in held:
                answer["oid"] = held[asked["path"]][0]
            answers.append(answer)
        return {"files": answers}

    def on_xet(self, repository: Repository, rev: str) -> Any:
        """Where the client puts chunks."""
        assert self.hub.xet
        body = {"casUrl": self.hub.xet.address, "accessToken": "x", "exp": 2**33}
        headers = {"X-Xet-Cas-Url": body["casUrl"], "X-Xet-Access-Token": "x"}
        return json.dumps(body).encode(), {**headers, "X-Xet-Token-Expiration": str(2**33)}

    def on_batch(self, repository: Repository) -> Any:
        """Where the client puts the LFS objects that are missing."""
        objects = []
        for asked in self.json()["objects"]:
            oid = asked["oid"]
            if not (self.hub.folder / oid).exists():
                verify = {"href": f"{self.hub.endpoint}/lfs/verify", "header": {}}
                upload = {"href": f"{self.hub.endpoint}/lfs/{oid}", "header": {}}
                asked = {**asked, "actions": {"upload": upload, "verify": verify}}
            objects.append(asked)
        return {"transfer": "basic", "objects": objects}

    def on_put(self, oid: str) -> Any:
        """Store an LFS object that has the hash of its name."""
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "the content does not have this hash")
        (self.hub.folder / oid).write_bytes(self.body)
        self.hub.received[oid] += 1
        if self.hub.after_uploads and sum(self.hub.received.values()) == self.hub.after_uploads[0]:
            self.hub.after_uploads[1]()
            self.hub.after_uploads = None
        return {}

    def on_verify(self) -> Any:
        """Refuse an LFS object that is missing or of another size."""
        asked = self.json()
        path = self.hub.folder / asked["oid"]
        if not path.exists() or path.stat().st_size != asked["size"]:
            raise Refused(404, "object missing or of another size")
        return {}

    def on_commit(self, repository: Repository, rev: str) -> Any:
        """Move a branch, if it is where the client expects it."""
        lines = [json.loads(line) for line in self.body.splitlines() if line]
        head = self.commit_of(repository, rev)
        parent = lines[0]["value"].get("parentCommit")
        if parent and parent != head:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repository.commits[head])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = self.hub.store(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                stored = self.hub.folder / value["oid"]
                if self.hub.xet and not stored.exists():
                    shutil.copyfile(self.hub.xet.file(value["oid"]), stored)
                if not stored.exists():
                    raise Refused(400, f"LFS pointer of {value['path']} names no object")
                files[value["path"]] = (value["oid"], stored.stat().st_size, True)
            elif line["key"] == "deletedFile":
                if files.pop(value["path"], None) is None:
                    raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
            else:
                files = {p: f for p, f in files.items() if not p.startswith(value["path"])}
        for path in self.hub.corrupt & set(files):
            files[path] = (hashlib.sha256(b"spoiled").hexdigest(), *files[path][1:])
        oid = repository.commit(rev, files)
        url = f"{self.hub.endpoint}/datasets/{self.name_of(repository)}/commit/{oid}"
        return {"success": True, "commitOid": oid, "commitUrl": url}
