"""What servers recorded of their own batches, as rows with weights: read from whatever file people have.

model       Observed, and what one log line can hold
clock       the times of log lines, with or without a year
source      a log as text lines: colours removed, gzip by content
settings    what a log says about the server: its capture list and limits
vllm        vLLM's graph tables, per-iteration lines and periodic lines
sglang      SGLang's decode lines
gauges      samples weighted by the time they stand for: Prometheus text, a CSV of running requests
lifecycle   first and last token times of requests, as rows over time
segments    a `steps.csv` of ours
tally       readings of one kind, added up
logs        one pass over a log with every reader of log lines
detect      read_observed: which of all these a file is
"""
