"""``python -m semifine`` is the command line."""

import sys

from semifine.cli.main import main

sys.exit(main())
