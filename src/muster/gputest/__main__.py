"""`python -m muster.gputest --level 1|2|3`."""

import sys

from muster.gputest.cli import main

sys.exit(main())
