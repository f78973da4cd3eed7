"""`python -m iet` is `iet`."""

from iet.cli import main

raise SystemExit(main())
