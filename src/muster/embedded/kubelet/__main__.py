"""`python -m muster.embedded.kubelet`: the kubelet of one node."""

import sys

from muster.kube.garbage import loading

with loading():
    from muster.embedded.kubelet.program import main

sys.exit(main())
