"""Small shards of clustered unit vectors."""

import numpy as np
import pytest


def clustered(num_documents, dimension, seed, num_clusters=40):
    """Unit vectors around unevenly filled clusters, and independent quality."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(num_clusters, dimension))
    share = random.dirichlet(np.full(num_clusters, 0.5))
    noise = random.normal(size=(num_documents, dimension))
    features = centres[random.choice(num_clusters, num_documents, p=share)] + noise
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features.astype(np.float32), random.normal(size=num_documents)


@pytest.fixture(scope="session")
def make_shard():
    """The function that makes a shard."""
    return clustered
