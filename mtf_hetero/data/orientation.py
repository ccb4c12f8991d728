"""Rotate a photo as the EXIF data of its JPEG file say, with TensorFlow's operations alone.

A worker decodes its images where no Python runs. `tf.io.decode_image` ignores the orientation.
"""

from mtf_hetero._compat import tf

TAG = 0x0112  # of EXIF's orientation: 1, as it is; 2 to 8, turned or mirrored
TRANSPOSED = range(5, 9)  # those that swap height and width
_MARK = b"Exif\0\0"  # TIFF data follow
_HEAD_BYTES = 2**13  # EXIF data are in the first or second segment of a file, and the orientation at their beginning
_MOST_ENTRIES = 64  # a damaged file may name any number
_ENTRY_BYTES = 12  # tag, type, count and value, as TIFF has them


def upright(image: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
    """Rotate and mirror an image as its file says.

    Args:
      image: [height, width, channels].
      content: of the file, of any kind.
    """
    head = tf.io.decode_raw(tf.strings.substr(content, 0, _HEAD_BYTES), tf.uint8)
    is_jpeg = tf.equal(tf.strings.substr(content, 0, 2), b"\xff\xd8")
    orientation = tf.cond(is_jpeg, lambda: _orientation(tf.cast(head, tf.int32)), lambda: 1)

    def turned() -> tf.Tensor:
        """Read the pixels from their places, because tf.transpose of integers logs an error of oneDNN."""
        height, width, channels = tf.unstack(tf.shape(image))
        rows, columns = tf.range(height), tf.range(width)
        rows = tf.where_v2(is_any(3, 4, 6, 7), rows[::-1], rows)
        columns = tf.where_v2(is_any(2, 3, 7, 8), columns[::-1], columns)
        places = tf.cond(
            is_any(*TRANSPOSED), lambda: rows * width + columns[:, None], lambda: rows[:, None] * width + columns
        )
        return tf.gather(tf.reshape(image, [-1, channels]), places)

    def is_any(*kinds: int) -> tf.Tensor:
        return tf.reduce_any(tf.equal(orientation, kinds))

    return tf.cond(orientation > 1, turned, lambda: image)


def _orientation(head: tf.Tensor) -> tf.Tensor:
    """Return the orientation in the first bytes of a JPEG file, from 1 to 8; 1: they name none."""
    head = tf.pad(head, [[0, len(_MARK)]])
    last = tf.size(head) - len(_MARK)
    is_mark = tf.reduce_all([tf.equal(head[i : last + i], byte) for i, byte in enumerate(_MARK)], axis=0)
    tiff = head[tf.argmax(is_mark, output_type=tf.int32) + len(_MARK) :]

    def number(places: tf.Tensor, size: int) -> tf.Tensor:
        places = tf.clip_by_value(places[..., None] + tf.range(size), 0, tf.size(tiff) - 1)
        weights = 256 ** tf.range(size)
        is_little_endian = tf.equal(tiff[0], ord("I"))
        return tf.reduce_sum(tf.gather(tiff, places) * tf.where_v2(is_little_endian, weights, weights[::-1]), -1)

    directory = number(tf.constant(4), 4)
    count = tf.minimum(number(directory, 2), _MOST_ENTRIES)
    entries = directory + 2 + _ENTRY_BYTES * tf.range(count)
    is_orientation = tf.equal(number(entries, 2), TAG)
    orientation = tf.reduce_max(tf.where_v2(is_orientation, number(entries + 8, 2), 1))
    return tf.where_v2(tf.reduce_any(is_mark) & (orientation <= 8), orientation, 1)
