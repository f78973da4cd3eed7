"""Text in, report out: scores, segments, evidence, and who is named."""
