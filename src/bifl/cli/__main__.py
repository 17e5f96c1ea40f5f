"""`python -m bifl.cli` is `bifl`."""

import sys

from bifl.cli.dispatch import main

sys.exit(main())
