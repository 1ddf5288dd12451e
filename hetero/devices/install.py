"""What to install for a device that is not here: the packages of the extras in setup.cfg.

They are named one by one, because 'pip install hetero[...]' would ask an index for hetero.
"""

CUDA = "pip install pycuda cuda-bindings nvidia-cuda-nvrtc"
LIBRARY = "pip install nvmath-python nvidia-cublas nvidia-cufft"
OPENCL = "pip install pyopencl intel-opencl-rt intel-cmplr-lib-rt"
OPENCV = "pip install opencv-python-headless"
