"""Elastic, crash-safe KV-cache memory for LLM inference on Ray."""
