"""Ask models: where they answer, how often they are asked, and their answers on disk."""
