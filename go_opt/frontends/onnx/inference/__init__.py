"""What is known of tensors: types, shapes, values, and the sizes of dimensions."""
