// How attention is dealt to threads. What is computed per query row and KV block, and how blocks
// merge, is in attention-inl.h and does not depend on it.
#include "kernels/attention.h"

#include <algorithm>

#include "base/arith.h"
#include "base/check.h"
#include "kernels/cpu/table.h"

namespace granule::kernels {
namespace {

// Query rows that share a pass over a KV block, where a group of heads is not larger.
constexpr int64_t kQueryRows = 48;
// Below this many multiply-adds a loop over threads costs more than it saves.
constexpr int64_t kSmallWork = 50'000;

// Consecutive rows of one sequence.
struct Tile {
  int64_t row = 0;
  int64_t tokens = 0;
};

struct Sizes {
  int64_t group, tokens, query_rows, padded_dim;

  explicit Sizes(const AttentionShape& shape)
      : group(shape.heads / std::max<int64_t>(shape.kv_heads, 1)),
        tokens(std::max<int64_t>(1, kQueryRows / std::max<int64_t>(group, 1))),
        query_rows(tokens * group),
        padded_dim(RoundUp<int64_t>(shape.head_dim, kStrip)) {}

  // Floats of one partial result: acc, and max and sum, of `rows` query rows.
  int64_t PartialFloats(int64_t rows) const {
    return rows * padded_dim + 2 * RoundUp<int64_t>(rows, 16);
  }
};

// Partial results that the workspace holds: enough for every thread to take several blocks before a
// merge.
constexpr int64_t kPartialsPerThread = 8;
constexpr int64_t kPartialBytesPerThread = 128 << 10;

// Hands out 64-byte aligned pieces of the workspace; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  float* Floats(int64_t count) {
    float* p = base_ == nullptr ? nullptr : reinterpret_cast<float*>(base_ + used_);
    used_ += static_cast<size_t>(RoundUp<int64_t>(count * 4, 64));
    return p;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

AttendScratch CarveScratch(Carver& carver, const Sizes& sizes, int64_t head_dim) {
  AttendScratch s;
  s.q = carver.Floats(sizes.query_rows * head_dim);
  s.k = carver.Floats(kKvBlock * head_dim);
  s.v = carver.Floats(kKvBlock * sizes.padded_dim);
  s.scores = carver.Floats(sizes.query_rows * kKvBlock);
  s.block_acc = carver.Floats(sizes.query_rows * sizes.padded_dim);
  s.block_max = carver.Floats(sizes.query_rows);
  s.block_sum = carver.Floats(sizes.query_rows);
  s.acc = carver.Floats(sizes.query_rows * sizes.padded_dim);
  s.max = carver.Floats(sizes.query_rows);
  s.sum = carver.Floats(sizes.query_rows);
  return s;
}

int64_t PartialFloatsOfWorkspace(const Sizes& sizes, int threads) {
  return threads * std::max<int64_t>(kPartialsPerThread * sizes.PartialFloats(sizes.query_rows),
                                     kPartialBytesPerThread / 4);
}

// One call's view of its workspace and arguments.
class AttentionRun {
 public:
  AttentionRun(const Context& context, const AttentionArgs& args)
      : context_(context), args_(args), sizes_(args.shape), threads_(context.pool->threads()) {
    const auto rows = static_cast<int64_t>(args.rows.size());
    GRANULE_CHECK(args.workspace_bytes >= AttentionWorkspaceBytes(args.shape, rows, threads_));
    Carver whole(args.workspace);
    tiles_ = reinterpret_cast<Tile*>(whole.Floats(rows * static_cast<int64_t>(sizeof(Tile)) / 4));
    partials_ = whole.Floats(PartialFloatsOfWorkspace(sizes_, threads_));
    scratch_offset_ = whole.used();
    Carver one(nullptr);
    CarveScratch(one, sizes_, args.shape.head_dim);
    scratch_bytes_ = one.used();
    MakeTiles();
  }

  void Run() {
    const int64_t tasks = tile_count_ * args_.shape.kv_heads;
    if (tasks < 4 * threads_ && most_blocks_ > 1 && !IsSmall()) {
      RunSplit(tasks);
      return;
    }
    context_.pool->Run(tasks, IsSmall() ? tasks : 1, [&](int64_t begin, int64_t end, int thread) {
      const AttendScratch scratch = ScratchOf(thread);
      for (int64_t task = begin; task < end; ++task) RunTask(JobOf(task), scratch);
    });
  }

 private:
  void MakeTiles() {
    const auto rows = static_cast<int64_t>(args_.rows.size());
    for (int64_t r = 0; r < rows;) {
      Tile& tile = tiles_[tile_count_++];
      tile = {r, 1};
      const RowPlace& first = args_.rows[static_cast<size_t>(r)];
      GRANULE_DCHECK(first.slot >= 0 && first.sequence >= 0);
      while (tile.tokens < sizes_.tokens && r + tile.tokens < rows) {
        const RowPlace& next = args_.rows[static_cast<size_t>(r + tile.tokens)];
        if (next.sequence != first.sequence) break;
        GRANULE_DCHECK(next.slot > args_.rows[static_cast<size_t>(r + tile.tokens - 1)].slot);
        ++tile.tokens;
      }
      const int64_t slots = args_.rows[static_cast<size_t>(r + tile.tokens - 1)].slot + 1;
      most_blocks_ = std::max(most_blocks_, CeilDiv(slots, kKvBlock));
      multiply_adds_ += slots * tile.tokens * args_.shape.heads * args_.shape.head_dim * 2;
      r += tile.tokens;
    }
  }
  bool IsSmall() const { return multiply_adds_ < kSmallWork; }

  AttendScratch ScratchOf(int thread) const {
    Carver carver(args_.workspace + scratch_offset_ + static_cast<size_t>(thread) * scratch_bytes_);
    return CarveScratch(carver, sizes_, args_.shape.head_dim);
  }

  AttendJob JobOf(int64_t task) const {
    const Tile& tile = tiles_[task / args_.shape.kv_heads];
    AttendJob job;
    job.places = &args_.rows[static_cast<size_t>(tile.row)];
    job.tokens = tile.tokens;
    job.group = sizes_.group;
    job.kv_head = task % args_.shape.kv_heads;
    job.head_dim = args_.shape.head_dim;
    job.padded_dim = sizes_.padded_dim;
    job.scale = args_.shape.scale;
    job.view = args_.views[static_cast<size_t>(job.places[0].sequence)];
    job.q = args_.q + tile.row * args_.ldq;
    job.ldq = args_.ldq;
    job.out = args_.out + tile.row * args_.ldo;
    job.ldo = args_.ldo;
    return job;
  }
  static int64_t BlocksOf(const AttendJob& job) {
    return CeilDiv(job.places[job.tokens - 1].slot + 1, kKvBlock);
  }

  void RunTask(const AttendJob& job, const AttendScratch& s) const {
    const CpuTable& table = *context_.table;
    table.attend_begin(job, s);
    for (int64_t block = 0; block < BlocksOf(job); ++block) {
      if (block == 0) {
        table.attend_block(job, 0, s, s.max, s.sum, s.acc);
        continue;
      }
      table.attend_block(job, block, s, s.block_max, s.block_sum, s.block_acc);
      table.attend_merge(job, block, s.block_max, s.block_sum, s.block_acc, s.max, s.sum, s.acc);
    }
    table.attend_end(job, s.sum, s.acc);
  }

  // Few tasks over many slots: waves of blocks are computed side by side into the workspace, then
  // merged in order. Slot 0 of a task's partials holds what is merged so far.
  void RunSplit(int64_t tasks) const {
    const CpuTable& table = *context_.table;
    int64_t most_rows = 0;
    for (int64_t t = 0; t < tile_count_; ++t)
      most_rows = std::max(most_rows, tiles_[t].tokens * sizes_.group);
    const int64_t entry = RoundUp<int64_t>(sizes_.PartialFloats(most_rows), 16);
    const int64_t entries = PartialFloatsOfWorkspace(sizes_, threads_) / entry;
    const int64_t wave = entries / tasks - 1;  // >= 1: entries >= 8 * threads, tasks < 4 * threads

    struct Partial {
      float *acc, *max, *sum;
    };
    const auto partial_of = [&](int64_t task, int64_t i) {
      float* p = partials_ + (task * (wave + 1) + i) * entry;
      float* max = p + most_rows * sizes_.padded_dim;
      return Partial{p, max, max + RoundUp<int64_t>(most_rows, 16)};
    };
    for (int64_t first = 0; first < most_blocks_; first += wave) {
      const int64_t width = std::min(wave, most_blocks_ - first);
      context_.pool->Run(tasks * width, 1, [&](int64_t begin, int64_t end, int thread) {
        const AttendScratch scratch = ScratchOf(thread);
        for (int64_t item = begin; item < end; ++item) {
          const int64_t task = item % tasks,
                        i = item / tasks;  // neighbours read neighbouring memory
          const AttendJob job = JobOf(task);
          if (first + i >= BlocksOf(job)) continue;
          const Partial to = partial_of(task, i + 1);
          table.attend_begin(job, scratch);
          table.attend_block(job, first + i, scratch, to.max, to.sum, to.acc);
        }
      });
      context_.pool->Run(tasks, IsSmall() ? tasks : 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t task = begin; task < end; ++task) {
          const AttendJob job = JobOf(task);
          const Partial merged = partial_of(task, 0);
          const int64_t last = std::min(first + width, BlocksOf(job));
          for (int64_t block = first; block < last; ++block) {
            const Partial from = partial_of(task, block - first + 1);
            table.attend_merge(job, block, from.max, from.sum, from.acc, merged.max, merged.sum,
                               merged.acc);
          }
          if (last == BlocksOf(job)) table.attend_end(job, merged.sum, merged.acc);
        }
      });
    }
  }

  const Context& context_;
  const AttentionArgs& args_;
  const Sizes sizes_;
  const int threads_;
  Tile* tiles_ = nullptr;
  int64_t tile_count_ = 0;
  int64_t most_blocks_ = 0;
  int64_t multiply_adds_ = 0;
  float* partials_ = nullptr;
  size_t scratch_offset_ = 0;
  size_t scratch_bytes_ = 0;
};

}  // namespace

size_t AttentionWorkspaceBytes(const AttentionShape& shape, int64_t rows, int threads) {
  const Sizes sizes(shape);
  Carver carver(nullptr);
  carver.Floats(rows * static_cast<int64_t>(sizeof(Tile)) / 4);
  carver.Floats(PartialFloatsOfWorkspace(sizes, threads));
  for (int t = 0; t < threads; ++t) CarveScratch(carver, sizes, shape.head_dim);
  return carver.used();
}

void Attention(const Context& context, const AttentionArgs& args) {
  if (args.rows.empty()) return;
  AttentionRun(context, args).Run();
}

void RotateAndAppend(const Context& context, const AppendArgs& args) {
  const auto rows = static_cast<int64_t>(args.rows.size());
  const AttentionShape& shape = args.shape;
  const int64_t floats_per_row = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(floats_per_row, 1));
  context.pool->Run(rows, grain, [&](int64_t begin, int64_t end, int) {
    context.table->rotate_append(args, args.rows.data(), args.views.data(), begin, end);
  });
}

}  // namespace granule::kernels
