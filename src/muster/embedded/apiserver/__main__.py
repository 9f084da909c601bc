"""`python -m muster.embedded.apiserver`: one API server on a state folder."""

import sys

from muster.kube.garbage import loading

with loading():
    from muster.embedded.apiserver.program import main

sys.exit(main())
