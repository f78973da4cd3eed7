"""The paper's experiments (§ Experiment and appendices), each by one command."""
