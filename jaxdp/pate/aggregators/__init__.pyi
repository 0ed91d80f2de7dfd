from ._confident import ConfidentNoisyMax as ConfidentNoisyMax
from ._contract import Aggregator as Aggregator, Labels as Labels, check_aggregator as check_aggregator
from ._gaussian import GaussianNoisyMax as GaussianNoisyMax
from ._interactive import InteractiveNoisyMax as InteractiveNoisyMax
from ._laplace import LaplaceNoisyMax as LaplaceNoisyMax
