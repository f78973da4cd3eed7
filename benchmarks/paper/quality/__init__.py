"""The paper's first question: does marking cost quality."""
