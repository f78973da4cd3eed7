"""The small language model that ships with the package, and the conversation that `iet demo` stages."""
