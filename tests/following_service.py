"""A process that follows a folder and counts its lines until it is ended.

`python -m tests.following_service FOLDER STATE`
"""

from __future__ import annotations

import sys
from pathlib import Path

from accumaudit.service.following import Follower
from accumaudit.service.store import Store


def follow(folder: Path, state: Path, *, forever: bool) -> dict[str, list[int]]:
    """Count the lines of each file and add up the numbers in them, saved with the places in the files.

    Says so on stdout after each saving.
    """
    with Store(state) as store:
        loaded = store.load()
        counts: dict[str, list[int]] = loaded.get("counts", {})
        follower = Follower(folder, loaded.get("places"))
        while forever or not follower.caught_up:
            for chunk in follower.turn():
                if not chunk.again:
                    count, total = counts.get(chunk.file, (0, 0))
                    total += sum(int(line.text) for line in chunk.lines)
                    counts[chunk.file] = [count + len(chunk.lines), total]
            store.save({"places": follower.changes(), "counts": counts})
            follower.saved()
            sys.stdout.write("saved\n")
            sys.stdout.flush()
    return counts


if __name__ == "__main__":
    follow(*map(Path, sys.argv[1:]), forever=True)
