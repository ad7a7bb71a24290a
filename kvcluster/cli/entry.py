"""Where the `kvcluster` command begins: it answers Ctrl-C quietly from its first moment on.

Nothing is imported before that can be interrupted, because a signal among the imports would show as a traceback.
"""

from __future__ import annotations


def main() -> None:
    try:
        from kvcluster.cli.main import app

        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
