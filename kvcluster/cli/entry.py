"""Where the `kvcluster` command begins: it answers Ctrl-C quietly from its first moment on.

Nothing is imported before that can be interrupted, because a signal among the imports would show as a traceback.
"""

from __future__ import annotations

import sys


def main() -> None:
    try:
        try:
            from kvcluster.cli.main import app
        except ValueError as wrong:  # `kvcluster.failpoints` reads its environment when it is imported
            print(f"kvcluster: KVCLUSTER_FAILPOINTS: {wrong}", file=sys.stderr)
            raise SystemExit(2) from None
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
