"""Names of the metrics of a decoder's ingress: vLLM's, with its label ``model_name``: here the pipeline's name.

Source: vLLM, ``docs/usage/metrics.md``. The controller's monitor imports this module too.
"""

from __future__ import annotations

TEXTS_RUNNING = "vllm:num_requests_running"
"""Gauge: texts that take part in iterations."""
TEXTS_WAITING = "vllm:num_requests_waiting"
"""Gauge: texts in the queue."""
KV_USAGE = "vllm:kv_cache_usage_perc"
"""Gauge: part of the pages in use, 0 to 1."""
PREEMPTIONS = "vllm:num_preemptions_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
WRITTEN_TOKENS = "vllm:generation_tokens_total"
"""Counters."""
TTFT_SECONDS = "vllm:time_to_first_token_seconds"
TPOT_SECONDS = "vllm:time_per_output_token_seconds"
"""Histograms: from arrival to the first token, and from one token of a text to its next."""
