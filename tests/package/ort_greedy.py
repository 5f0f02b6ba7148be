"""Greedy generation with ONNX Runtime over a folder as the import writes it: the oracle of the import tests."""
import pathlib

import numpy as np
import onnxruntime as ort


class Decoder:
    def __init__(self, folder):
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 2
        self.session = ort.InferenceSession(str(pathlib.Path(folder) / "model.onnx"), options, providers=["CPUExecutionProvider"])
        self.past = [i for i in self.session.get_inputs() if i.name.startswith("past_key_values.")]
        self.outputs = ["logits"] + [i.name.replace("past_key_values", "present") for i in self.past]

    def greedy(self, prompt_ids, count):
        """`count` ids after the prompt, and for each the distance of its logit to the second best."""
        feeds = {i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32) for i in self.past}
        fresh, total, ids, margins = list(prompt_ids), 0, [], []
        while len(ids) < count:
            total += len(fresh)
            feeds["input_ids"] = np.array([fresh], np.int64)
            feeds["attention_mask"] = np.ones((1, total), np.int64)
            results = self.session.run(self.outputs, feeds)
            last = results[0][0, -1]
            assert last.dtype == np.float32
            best = int(np.argmax(last))
            second = np.partition(last, -2)[-2]
            ids.append(best)
            margins.append(float(last[best] - second))
            fresh = [best]
            for port, present in zip(self.past, results[1:]):
                feeds[port.name] = present
        return ids, margins
