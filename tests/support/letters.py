"""Characters that Hypothesis draws texts from."""

from __future__ import annotations

from hypothesis import strategies as st

# Those of st.text(), which asks the codec of UTF-8 about a million characters first: three seconds.
LETTERS = st.characters(exclude_categories=["Cs"])
