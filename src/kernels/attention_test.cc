#include "kernels/attention.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "base/thread_pool.h"
#include "kernels/ref/reference.h"
#include "kernels/test_inputs.h"

namespace granule::kernels {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

// K and V of one sequence in a layout of choice, poisoned with NaN.
class Kv {
 public:
  enum class Layout { kSeqMajor, kHeadMajor, kInterleaved };

  Kv(const AttentionShape& shape, int64_t capacity, DType type, Layout layout) {
    const int64_t element = BitsOf(type) / 8, head = shape.head_dim * element;
    view.dtype = type;
    switch (layout) {
      case Layout::kSeqMajor:
        view.k_token_stride = view.v_token_stride = shape.kv_heads * head;
        view.k_head_stride = view.v_head_stride = head;
        break;
      case Layout::kHeadMajor:
        view.k_token_stride = view.v_token_stride = head;
        view.k_head_stride = view.v_head_stride = capacity * head;
        break;
      case Layout::kInterleaved:  // K and V of a token side by side, with a gap of one element
        view.k_token_stride = view.v_token_stride = 2 * shape.kv_heads * head + 7 * element;
        view.k_head_stride = view.v_head_stride = head;
        break;
    }
    const int64_t bytes = capacity * 2 * shape.kv_heads * head + capacity * 7 * element;
    memory_.assign(static_cast<size_t>(bytes) * 2, std::byte{0xff});  // NaN in every float type
    view.k = memory_.data();
    view.v = layout == Layout::kInterleaved ? memory_.data() + shape.kv_heads * head
                                            : memory_.data() + bytes;
  }

  KvView view;

 private:
  std::vector<std::byte> memory_;
};

struct Shape {
  AttentionShape attention;
  Rotary rotary;
  std::vector<float> cos, sin;

  Shape(int64_t heads, int64_t kv_heads, int64_t dim, int64_t rotary_dim, bool interleaved,
        int64_t positions = 1200) {
    attention = {heads, kv_heads, dim, 1.0f / std::sqrt(static_cast<float>(dim))};
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t i = 0; i < rotary_dim / 2; ++i) {
        const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * i / rotary_dim);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    rotary = {cos.data(), sin.data(), rotary_dim, interleaved};
  }
  int64_t q_width() const { return attention.heads * attention.head_dim; }
  int64_t kv_width() const { return attention.kv_heads * attention.head_dim; }
};

// The q, k, v rows of a whole sequence.
struct Tokens {
  std::vector<float> q, k, v;
  Tokens(const Shape& shape, int64_t count, Inputs& in)
      : q(in.Floats(count * shape.q_width())),
        k(in.Floats(count * shape.kv_width())),
        v(in.Floats(count * shape.kv_width())) {}
};

// One step over rows of sequences: append, then attend. Result [R, Hq*D].
struct StepRow {
  int32_t sequence;
  int64_t slot;
  const Tokens* tokens;
};
std::vector<float> Step(const Context& context, const Shape& shape,
                        const std::vector<StepRow>& rows, const std::vector<KvView>& views) {
  const int64_t qw = shape.q_width(), kw = shape.kv_width(), ldq = qw + 5, ldk = kw + 3;
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<float> q(count * ldq, kNan), k(count * ldk, kNan), v(count * ldk, kNan),
      out(count * qw, kNan);
  std::vector<RowPlace> places;
  for (int64_t r = 0; r < count; ++r) {
    const StepRow& row = rows[r];
    places.push_back({row.sequence, row.slot});
    std::copy_n(row.tokens->q.begin() + row.slot * qw, qw, q.begin() + r * ldq);
    std::copy_n(row.tokens->k.begin() + row.slot * kw, kw, k.begin() + r * ldk);
    std::copy_n(row.tokens->v.begin() + row.slot * kw, kw, v.begin() + r * ldk);
  }
  AppendArgs append;
  append.shape = shape.attention;
  append.rotary = shape.rotary;
  append.rows = places;
  append.views = views;
  append.q = q.data();
  append.ldq = ldq;
  append.k = k.data();
  append.ldk = ldk;
  append.v = v.data();
  append.ldv = ldk;
  RotateAndAppend(context, append);

  const size_t bytes = AttentionWorkspaceBytes(shape.attention, count, context.pool->threads());
  std::unique_ptr<std::byte, void (*)(void*)> workspace(
      static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), std::free);
  std::memset(workspace.get(), 0xff, bytes);
  AttentionArgs args;
  args.shape = shape.attention;
  args.rows = places;
  args.views = views;
  args.q = q.data();
  args.ldq = ldq;
  args.out = out.data();
  args.ldo = qw;
  args.workspace = workspace.get();
  args.workspace_bytes = bytes;
  Attention(context, args);
  return out;
}

// A whole sequence in chunks of `chunk` rows.
std::vector<float> Prefill(const Context& context, const Shape& shape, const Tokens& tokens,
                           int64_t count, int64_t chunk, const KvView& view) {
  std::vector<float> out;
  for (int64_t first = 0; first < count; first += chunk) {
    std::vector<StepRow> rows;
    for (int64_t s = first; s < std::min(count, first + chunk); ++s)
      rows.push_back({0, s, &tokens});
    const std::vector<float> y = Step(context, shape, rows, {view});
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

class AttentionTest : public testing::TestWithParam<Isa> {
 protected:
  AttentionTest()
      : pool_(2),
        one_(1),
        context_(MakeContext(pool_, GetParam())),
        single_(MakeContext(one_, GetParam())) {}
  ThreadPool pool_, one_;
  Context context_, single_;
};
INSTANTIATE_TEST_SUITE_P(Levels, AttentionTest, testing::ValuesIn(Levels()),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  shapes.emplace_back(9, 3, 64, 64, false);  // SmolLM2
  shapes.emplace_back(4, 1, 80, 80, false);  // one KV head, head_dim 80
  shapes.emplace_back(6, 6, 96, 24, true);   // partial, interleaved rotary
  shapes.emplace_back(2, 2, 72, 0, false);   // no rotary, tail of 8
  shapes.emplace_back(3, 1, 5, 4, false);    // smaller than a register
  shapes.emplace_back(2, 1, 1, 0, false);
  shapes.emplace_back(60, 1, 16, 16, true);  // a group larger than a query tile
  shapes.emplace_back(2, 1, 128, 128, false);
  return shapes;
}

TEST_P(AttentionTest, IsNearReference) {
  uint32_t seed = 1;
  for (const Shape& shape : Shapes()) {
    for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE("D " + std::to_string(shape.attention.head_dim) + " " +
                   std::string(DTypeName(type)));
      Inputs in(seed++);
      const int64_t count = 150;
      const Tokens tokens(shape, count, in);
      Kv kv(shape.attention, count, type, Kv::Layout::kSeqMajor);
      const std::vector<float> out = Prefill(context_, shape, tokens, count, 150, kv.view);
      // The KV against rotation in double, rounded to the type (one ulp: rotation itself is rounded
      // before).
      const double ulp = type == DType::kF32 ? 0x1p-22 : type == DType::kF16 ? 0x1p-9 : 0x1p-6;
      for (int64_t s : {int64_t{0}, int64_t{77}, count - 1}) {
        const std::vector<double> k =
            ref::Rotate(shape.rotary, s, shape.attention.kv_heads, shape.attention.head_dim,
                        &tokens.k[s * shape.kv_width()]);
        for (int64_t i = 0; i < shape.kv_width(); ++i) {
          const int64_t h = i / shape.attention.head_dim, d = i % shape.attention.head_dim;
          const auto* at = kv.view.k + s * kv.view.k_token_stride + h * kv.view.k_head_stride;
          ASSERT_NEAR(ref::ElementOf(at, type, d), k[i], ulp * 4) << s << " " << i;
          const auto* v = kv.view.v + s * kv.view.v_token_stride + h * kv.view.v_head_stride;
          ASSERT_NEAR(ref::ElementOf(v, type, d), tokens.v[s * shape.kv_width() + i], ulp * 4);
        }
        // Attention reads the KV as stored, so only fp32 arithmetic separates it from the
        // reference: a score is off by at most ~ (D + 2) ulp of sum |q||k| * scale, which is
        // relative to the weights; weights and values sum over `slot` terms. |q||k| sums are below
        // 4 D for these inputs.
        const std::vector<double> q =
            ref::Rotate(shape.rotary, s, shape.attention.heads, shape.attention.head_dim,
                        &tokens.q[s * shape.q_width()]);
        std::vector<float> rotated(q.begin(), q.end());
        const std::vector<double> expected =
            ref::Attend(shape.attention, kv.view, s, rotated.data());
        const double dim = static_cast<double>(shape.attention.head_dim);
        const double score_error = (dim + 4) * 0x1p-23 * 4 * dim * shape.attention.scale;
        const double bound = 4.0 * (2 * score_error + (static_cast<double>(s) + 8) * 0x1p-23);
        for (int64_t i = 0; i < shape.q_width(); ++i) {
          ASSERT_NEAR(out[s * shape.q_width() + i], expected[i], bound) << s << " " << i;
        }
      }
    }
  }
}

TEST_P(AttentionTest, ChunksThreadsLayoutsAndCompanyDoNotMatter) {
  uint32_t seed = 50;
  for (const Shape& shape : Shapes()) {
    if (shape.attention.heads == 60 && GetParam() == Isa::kPortable)
      continue;  // minutes under sanitizers
    SCOPED_TRACE("D " + std::to_string(shape.attention.head_dim));
    Inputs in(seed++);
    const int64_t count = 300;  // more than two KV blocks
    const Tokens tokens(shape, count, in);
    Kv whole(shape.attention, count, DType::kF32, Kv::Layout::kSeqMajor);
    const std::vector<float> expected = Prefill(context_, shape, tokens, count, count, whole.view);
    for (float x : expected) ASSERT_TRUE(std::isfinite(x));
    for (int64_t chunk : {1, 7, 64, 129}) {
      Kv kv(shape.attention, count, DType::kF32, Kv::Layout::kSeqMajor);
      ASSERT_TRUE(SameBits(expected, Prefill(context_, shape, tokens, count, chunk, kv.view)))
          << chunk << " rows a step";
    }
    for (Kv::Layout layout : {Kv::Layout::kHeadMajor, Kv::Layout::kInterleaved}) {
      Kv kv(shape.attention, count, DType::kF32, layout);
      ASSERT_TRUE(SameBits(expected, Prefill(single_, shape, tokens, count, 100, kv.view)))
          << "one thread, other layout";
    }

    // The last tokens alone inside a batch: a decode row, a chunk of 40 rows and a short stranger,
    // in one step.
    Kv a(shape.attention, count, DType::kF32, Kv::Layout::kHeadMajor),
        b(shape.attention, count, DType::kF32, Kv::Layout::kSeqMajor);
    Kv stranger(shape.attention, 8, DType::kF32, Kv::Layout::kSeqMajor);
    const Tokens other(shape, 8, in);
    Prefill(context_, shape, tokens, count - 1, 128, a.view);
    Prefill(context_, shape, tokens, count - 40, 128, b.view);
    std::vector<StepRow> rows = {{2, count - 1, &tokens}, {1, 0, &other}, {1, 1, &other}};
    for (int64_t s = count - 40; s < count; ++s) rows.push_back({0, s, &tokens});
    const std::vector<float> mixed = Step(context_, shape, rows, {b.view, stranger.view, a.view});
    const int64_t w = shape.q_width();
    ASSERT_TRUE(SameBits({expected.end() - w, expected.end()}, {mixed.begin(), mixed.begin() + w}));
    ASSERT_TRUE(
        SameBits({expected.end() - 40 * w, expected.end()}, {mixed.begin() + 3 * w, mixed.end()}));
  }
}

// Far more blocks than one wave of partial results holds.
TEST_P(AttentionTest, LongDecodeEqualsOneThread) {
  const Shape shape(3, 1, 16, 16, false, 20100);
  Inputs in(70);
  const int64_t count = 20001;
  const Tokens tokens(shape, count, in);
  Kv kv(shape.attention, count, DType::kF16, Kv::Layout::kSeqMajor);
  ThreadPool four(4);
  // Only KV, cheaply: rows of the past are appended, their attention is not computed.
  for (int64_t s = 0; s < count - 1; ++s) {
    const std::vector<RowPlace> place = {{0, s}};
    std::vector<float> q(&tokens.q[s * shape.q_width()], &tokens.q[(s + 1) * shape.q_width()]);
    AppendArgs append;
    append.shape = shape.attention;
    append.rotary = shape.rotary;
    append.rows = place;
    append.views = {&kv.view, 1};
    append.q = q.data();
    append.k = &tokens.k[s * shape.kv_width()];
    append.v = &tokens.v[s * shape.kv_width()];
    RotateAndAppend(single_, append);
  }
  const std::vector<float> one = Step(single_, shape, {{0, count - 1, &tokens}}, {kv.view});
  EXPECT_TRUE(SameBits(one, Step(context_, shape, {{0, count - 1, &tokens}}, {kv.view})));
  EXPECT_TRUE(SameBits(
      one, Step(MakeContext(four, GetParam()), shape, {{0, count - 1, &tokens}}, {kv.view})));
}

TEST_P(AttentionTest, HalfKvEqualsFp32KvOfTheSameValues) {
  for (DType type : {DType::kF16, DType::kBF16}) {
    for (const Shape& shape : {Shape(4, 2, 64, 0, false), Shape(4, 2, 72, 0, false)}) {
      Inputs in(80);
      const int64_t count = 200;
      Tokens tokens(shape, count, in);
      for (float& x : tokens.k)
        x = type == DType::kF16 ? F16ToF32(F32ToF16(x)) : BF16ToF32(F32ToBF16(x));
      for (float& x : tokens.v)
        x = type == DType::kF16 ? F16ToF32(F32ToF16(x)) : BF16ToF32(F32ToBF16(x));
      Kv half(shape.attention, count, type, Kv::Layout::kSeqMajor),
          full(shape.attention, count, DType::kF32, Kv::Layout::kSeqMajor);
      EXPECT_TRUE(SameBits(Prefill(context_, shape, tokens, count, 64, half.view),
                           Prefill(context_, shape, tokens, count, 64, full.view)));
    }
  }
}

// Later slots of the same step may hold anything, infinities too: earlier rows do not see them.
TEST_P(AttentionTest, LaterRowsOfTheStepDoNotReachEarlierOnes) {
  const Shape shape(6, 2, 64, 0, false);
  Inputs in(90);
  const int64_t count = 30;
  Tokens tokens(shape, count, in);
  Kv clean(shape.attention, count, DType::kF32, Kv::Layout::kSeqMajor),
      dirty(shape.attention, count, DType::kF32, Kv::Layout::kSeqMajor);
  const std::vector<float> expected = Prefill(context_, shape, tokens, count, count, clean.view);
  for (int64_t i = 0; i < shape.kv_width(); ++i) {
    tokens.v[20 * shape.kv_width() + i] = std::numeric_limits<float>::infinity();
    tokens.k[21 * shape.kv_width() + i] = kNan;
  }
  const std::vector<float> out = Prefill(context_, shape, tokens, count, count, dirty.view);
  const int64_t before = 20 * shape.q_width();
  EXPECT_TRUE(
      SameBits({expected.begin(), expected.begin() + before}, {out.begin(), out.begin() + before}));
}

// The last live slot ends where the mapping ends.
TEST_P(AttentionTest, NothingBehindTheLastSlotIsTouched) {
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  for (const Shape& shape :
       {Shape(9, 3, 64, 64, false), Shape(2, 1, 5, 4, false), Shape(2, 2, 72, 0, false)}) {
    for (DType type : {DType::kF32, DType::kF16}) {
      for (int64_t count : {1, 15, 17, 130}) {
        Inputs in(95);
        const Tokens tokens(shape, count, in);
        const int64_t token = shape.kv_width() * BitsOf(type) / 8;
        const int64_t used = count * token, mapped = (used + page - 1) / page * page;
        std::byte* areas[2];
        for (std::byte*& area : areas) {
          void* p = ::mmap(nullptr, static_cast<size_t>(mapped + page), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          ASSERT_NE(p, MAP_FAILED);
          area = static_cast<std::byte*>(p);
          ASSERT_EQ(::mprotect(area + mapped, static_cast<size_t>(page), PROT_NONE), 0);
        }
        KvView view;
        view.k = areas[0] + mapped - used;
        view.v = areas[1] + mapped - used;
        view.k_token_stride = view.v_token_stride = token;
        view.k_head_stride = view.v_head_stride = shape.attention.head_dim * BitsOf(type) / 8;
        view.dtype = type;
        Kv kv(shape.attention, count, type, Kv::Layout::kSeqMajor);
        EXPECT_TRUE(SameBits(Prefill(context_, shape, tokens, count, 16, view),
                             Prefill(context_, shape, tokens, count, 16, kv.view)));
        for (std::byte* area : areas) ::munmap(area, static_cast<size_t>(mapped + page));
      }
    }
  }
}

TEST_P(AttentionTest, OneSlotGivesItsValue) {
  const Shape shape(4, 2, 24, 8, true);
  Inputs in(96);
  const Tokens tokens(shape, 1, in);
  Kv kv(shape.attention, 1, DType::kF32, Kv::Layout::kSeqMajor);
  const std::vector<float> out = Prefill(context_, shape, tokens, 1, 1, kv.view);
  for (int64_t i = 0; i < shape.q_width(); ++i) EXPECT_EQ(out[i], tokens.v[i / 48 * 24 + i % 24]);
}

TEST_P(AttentionTest, ScoresOfAnySizeStayFinite) {
  Shape shape(2, 1, 32, 0, false);
  shape.attention.scale = 30.0f;
  Inputs in(97);
  const int64_t count = 300;
  Tokens tokens(shape, count, in);
  for (float& x : tokens.q) x *= 50.0f;
  Kv kv(shape.attention, count, DType::kF32, Kv::Layout::kSeqMajor);
  const std::vector<float> out = Prefill(context_, shape, tokens, count, 100, kv.view);
  const std::vector<double> expected =
      ref::Attend(shape.attention, kv.view, count - 1, &tokens.q[(count - 1) * shape.q_width()]);
  for (int64_t i = 0; i < shape.q_width(); ++i)
    EXPECT_NEAR(out[(count - 1) * shape.q_width() + i], expected[i], 2e-2);
}

TEST(AttentionLevels, Avx2AndAvx512AgreeBitForBit) {
  if (BestIsa() < Isa::kAvx512) GTEST_SKIP() << "this CPU has no AVX-512";
  ThreadPool pool(2);
  const Context avx2 = MakeContext(pool, Isa::kAvx2), avx512 = MakeContext(pool, Isa::kAvx512);
  uint32_t seed = 150;
  for (const Shape& shape : Shapes()) {
    for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE("D " + std::to_string(shape.attention.head_dim));
      Inputs in(seed++);
      const int64_t count = 260;
      const Tokens tokens(shape, count, in);
      Kv a(shape.attention, count, type, Kv::Layout::kSeqMajor),
          b(shape.attention, count, type, Kv::Layout::kHeadMajor);
      ASSERT_TRUE(SameBits(Prefill(avx2, shape, tokens, count, 90, a.view),
                           Prefill(avx512, shape, tokens, count, 90, b.view)));
    }
  }
}

TEST(AttentionWorkspace, IsBoundedByRowsAndThreads) {
  const Shape shape(9, 3, 64, 64, false);
  const size_t one = AttentionWorkspaceBytes(shape.attention, 1, 2);
  EXPECT_LT(one, size_t{1} << 20);
  EXPECT_LE(AttentionWorkspaceBytes(shape.attention, 1001, 2) - one,
            1000 * sizeof(int64_t) * 2 + 64);
  EXPECT_EQ(AttentionWorkspaceBytes(shape.attention, 1, 4) % 64, 0u);
}

}  // namespace
}  // namespace granule::kernels
