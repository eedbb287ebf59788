"""What runs the kernels that backends describe: choose, compile, pack, bind, launch.

:class:`KernelLayer` is a layer that is ready to run. :class:`Planner` is the part of it that needs
no device: which kernels a layer will use. :data:`ARGUMENTS` says what kernels are given.
"""

from humming.engine.ahead import needed_kernels
from humming.engine.arguments import ARGUMENTS, Argument
from humming.engine.choice import Choice, Planner, bucket, buckets, choose
from humming.engine.kernel_layer import KernelLayer, Shelf
from humming.engine.measured import CONDITIONS
from humming.engine.prepared import LayerOptions, PreparedLayer, Profile, prepare
from humming.engine.site import Site
from humming.engine.workshop import Workshop, workshop

__all__ = [
    "ARGUMENTS",
    "CONDITIONS",
    "Argument",
    "Choice",
    "KernelLayer",
    "LayerOptions",
    "Planner",
    "PreparedLayer",
    "Profile",
    "Shelf",
    "Site",
    "Workshop",
    "bucket",
    "buckets",
    "choose",
    "needed_kernels",
    "prepare",
    "workshop",
]
