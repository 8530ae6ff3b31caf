"""The networks of these experiments and their training by several workers: torch computes, millrace_replay compresses."""

from experiment import need_torch, np, trace_models

torch = need_torch()
TRAINED_ON = 8000  # of MNIST's 10,000 test digits; the others are held out


def digits():
    """(images, labels) to train on and held out."""
    x, y = trace_models().mnist()
    return (x[:TRAINED_ON], y[:TRAINED_ON]), (x[TRAINED_ON:], y[TRAINED_ON:])


class SmallCnn(torch.nn.Module):
    """Three 3x3 convolutions with pooling, two dense layers: 25,034 parameters."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
                                      nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.head(self.features(x))


class GsparCnn(torch.nn.Module):
    """[GSpar18, 4.1]: three 3x3 convolutions with batch normalisation, two poolings, a dense layer of 256; MNIST for CIFAR-10."""

    def __init__(self, channels):
        super().__init__()
        nn = torch.nn
        layers = []
        for inputs, pooled in ((1, True), (channels, True), (channels, False)):
            layers += [nn.Conv2d(inputs, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if pooled else []
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(channels * 49, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, x):
        return self.head(self.features(x))


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def gradient(model, loss):
    """[n] f32 of all parameters, in their order."""
    model.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]).numpy().copy()


def descend(model, update):
    """weights -= update."""
    at = 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= torch.from_numpy(update[at:at + parameter.numel()]).view_as(parameter)
            at += parameter.numel()


def set_gradient(model, update):
    at = 0
    for parameter in model.parameters():
        parameter.grad = torch.from_numpy(update[at:at + parameter.numel()].copy()).view_as(parameter)
        at += parameter.numel()


def accuracy(model, held_out):
    model.eval()
    with torch.no_grad():
        right = (model(held_out[0]).argmax(1) == held_out[1]).float().mean().item()
    model.train()
    return right


def cross_entropy(model, data, samples):
    return torch.nn.functional.cross_entropy(model(data[0][samples]), data[1][samples])


def train(model, exchange, workers, steps, rate, seed, batch=32, every=20):
    """Synchronous SGD of a network on the digits: the exchanged values include the learning rate.

    exchange  gradients [workers][n] to the update [n]
    Returns   points (step, mean training loss since the last, held-out accuracy)
    """
    data, held_out = digits()
    draw = np.random.default_rng(seed)
    points, losses = [], []
    for step in range(1, steps + 1):
        gradients = []
        for _ in range(workers):
            loss = cross_entropy(model, data, torch.from_numpy(draw.integers(0, TRAINED_ON, batch)))
            gradients.append(np.float32(rate) * gradient(model, loss))
            losses.append(loss.item())
        descend(model, exchange(gradients))
        if step % every == 0 or step == steps:
            points.append((step, float(np.mean(losses)), accuracy(model, held_out)))
            losses = []
            if not np.isfinite(points[-1][1]):
                break
    return points
