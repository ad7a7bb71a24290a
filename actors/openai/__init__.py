"""The HTTP side of serving: OpenAI's routes over whatever computes. No Ray here; `open_app` is the way in."""
