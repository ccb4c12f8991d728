from tensorflow.compat import v1 as v1
from tensorflow.compat import v2 as v2
