#include "program.h"

#include <algorithm>
#include <cmath>

#include "ops/op.h"

namespace headrace {
namespace {

constexpr uint32_t kMaxDepth = 8;

const Op& op_of(const hr_op& op) { return *find_op(op.id); }

// Ops stand before those inside of them: the ops inside `at` are those from at + 1 to after(at)
// - 1.
int after(const hr_pipeline& pipeline, int at) { return at + 1 + pipeline.ops[at].inside; }

// Calls `visit` with each op of [first, end) that isn't inside another of them.
template <typename Visit>
Code for_each(const hr_pipeline& pipeline, int first, int end, const Visit& visit) {
  for (int at = first; at < end; at = after(pipeline, at)) {
    const Code code = visit(at);
    if (code != Code::kOk) return code;
  }
  return Code::kOk;
}

// Calls `visit` with the first op and the end of each part of container `at` that is applied.
template <typename Visit>
Code for_each_applied(const hr_pipeline& pipeline, int at, const double* draws,
                      const Visit& visit) {
  int parts[kMaxOps], applied[kMaxOps], count = 0;
  for (int part = at + 1; part < after(pipeline, at); part = after(pipeline, part))
    parts[count++] = part;
  const hr_op& op = pipeline.ops[at];
  const int used = op_of(op).order(op.params, draws, count, applied);
  for (int i = 0; i < used; ++i) {
    const int part = parts[applied[i]];
    const Code code = visit(part, after(pipeline, part));
    if (code != Code::kOk) return code;
  }
  return Code::kOk;
}

const char* check_op(const hr_op& op, int left) {
  const Op* known = find_op(op.id);
  if (known == nullptr) return "an op's id is unknown";
  if (op.inside < 0 || op.inside > left) return "an op holds ops that aren't there";
  if (op.inside > 0 && known->order == nullptr) return "an op holds others that can't";
  for (const double value : op.params) {
    if (!std::isfinite(value)) return "an op's parameter isn't finite";
  }
  const char* problem = known->check == nullptr ? nullptr : known->check(op.params);
  if (problem != nullptr) return problem;
  const int64_t data = known->data_count == nullptr ? 0 : known->data_count(op.params);
  const bool as_needed = op.data_count == data && (data == 0 || op.data != nullptr);
  return as_needed ? nullptr : "an op hasn't the data that it needs";
}

// Whether each op ends where the one that it is inside of ends, or before.
const char* check_nesting(const hr_pipeline& pipeline, int first, int end, uint32_t depth) {
  if (depth > kMaxDepth) return "ops are nested more than 8 deep";
  for (int at = first; at < end; at = after(pipeline, at)) {
    if (after(pipeline, at) > end) return "an op holds ops that aren't there";
    const char* problem = check_nesting(pipeline, at + 1, after(pipeline, at), depth + 1);
    if (problem != nullptr) return problem;
  }
  return nullptr;
}

Code draw_range(const hr_pipeline& pipeline, int first, int end, const RandomKey& key, Size* size,
                hr_draw* draws) {
  return for_each(pipeline, first, end, [&](int at) {
    const hr_op& call = pipeline.ops[at];
    const Op& op = op_of(call);
    double* v = draws[at].value;
    if (op.draw != nullptr) {
      // A stream for each op: what one takes from it never moves the numbers of another.
      RandomStream random(key, static_cast<uint32_t>(at));
      const Code code = op.draw(call.params, &random, *size, v);
      if (code != Code::kOk) return code;
    }
    if (op.draw_with_data != nullptr) {
      RandomStream random(key, static_cast<uint32_t>(at));
      const Code code = op.draw_with_data(call.params, call.data, &random, *size, v);
      if (code != Code::kOk) return code;
    }
    if (op.order != nullptr) {
      return for_each_applied(pipeline, at, v, [&](int part, int last) {
        return draw_range(pipeline, part, last, key, size, draws);
      });
    }
    if (op.size != nullptr) *size = op.size(call.params, v, *size);
    const bool possible = between(size->width, 1, kMaxEdge) && between(size->height, 1, kMaxEdge);
    return possible ? Code::kOk : Code::kUnsupported;
  });
}

class Builder {
 public:
  Builder(const hr_pipeline& pipeline, const hr_draw* draws, Size in, Program* program)
      : pipeline_(pipeline), draws_(draws), program_(program), size_(in), folder_(in) {
    program_->passes.clear();
    program_->pixels.clear();
  }

  Code add(int first, int end) {
    return for_each(pipeline_, first, end, [&](int at) {
      const hr_op& call = pipeline_.ops[at];
      const Op& op = op_of(call);
      const double* v = draws_[at].value;
      if (op.order != nullptr)
        return for_each_applied(pipeline_, at, v,
                                [&](int part, int last) { return add(part, last); });
      if (op.idle != nullptr && op.idle(call.params, v)) return Code::kOk;
      const Code code = op.fold != nullptr ? fold(op, call.params, v) : add_pixels(at);
      if (code != Code::kOk) return code;
      if (op.size != nullptr) size_ = op.size(call.params, v, size_);
      if (!between(size_.width, 1, kMaxEdge) || !between(size_.height, 1, kMaxEdge))
        return Code::kUnsupported;
      // A fold that is given another size than it gives is a bug of the op's.
      if (op.fold != nullptr &&
          (folder_.size().width != size_.width || folder_.size().height != size_.height))
        return Code::kInternal;
      if (op.pixels != nullptr) folder_ = Folder(size_);
      return Code::kOk;
    });
  }

  Code finish() {
    if (size_.width != pipeline_.width || size_.height != pipeline_.height)
      return Code::kUnsupported;
    return program_->passes.empty() || !folder_.untouched() ? end_fold() : Code::kOk;
  }

 private:
  Code fold(const Op& op, const double* p, const double* v) {
    const Code code = op.fold(p, v, &folder_);
    if (code != Code::kUnsupported || folder_.untouched()) return code;
    const Code ended = end_fold();
    if (ended != Code::kOk) return ended;
    folder_ = Folder(size_);
    return op.fold(p, v, &folder_);
  }

  Code add_pixels(int at) {
    if (program_->passes.empty() || !folder_.untouched()) {
      const Code code = end_fold();
      if (code != Code::kOk) return code;
    }
    program_->pixels.push_back(at);
    ++program_->passes.back().last;
    return Code::kOk;
  }

  Code end_fold() {
    Pass pass;
    const Code code = folder_.finish(&pass.geometry);
    if (code != Code::kOk) return code;
    pass.footprint = resize_footprint(pass.geometry.job, rules_of(pipeline_));
    if (pass.footprint.w == 0) return Code::kUnsupported;
    pass.first = pass.last = program_->pixels.size();
    program_->passes.push_back(pass);
    return Code::kOk;
  }

  const hr_pipeline& pipeline_;
  const hr_draw* draws_;
  Program* program_;
  Size size_;
  Folder folder_;  // what was folded since the last pass
};

}  // namespace

PillowRules rules_of(const hr_pipeline& pipeline) { return {pipeline.pillow_vertical_first != 0}; }

const char* check_ops(const hr_pipeline& pipeline) {
  for (int32_t i = 0; i < pipeline.op_count; ++i) {
    const char* problem = check_op(pipeline.ops[i], pipeline.op_count - 1 - i);
    if (problem != nullptr) return problem;
  }
  return check_nesting(pipeline, 0, pipeline.op_count, 0);
}

Code draw_ops(const hr_pipeline& pipeline, const RandomKey& key, Size in, hr_draw* draws,
              Size* out) {
  std::fill_n(draws, pipeline.op_count, hr_draw{});
  *out = in;
  return draw_range(pipeline, 0, pipeline.op_count, key, out, draws);
}

Code build_program(const hr_pipeline& pipeline, const hr_draw* draws, Size in, Program* program) {
  Builder builder(pipeline, draws, in, program);
  const Code code = builder.add(0, pipeline.op_count);
  return code == Code::kOk ? builder.finish() : code;
}

Rect in_source(const Geometry& geometry, const Rect& rect) {
  const Rect& crop = geometry.crop;
  const int x = geometry.mirror_x ? crop.w - rect.x - rect.w : rect.x;
  const int y = geometry.mirror_y ? crop.h - rect.y - rect.h : rect.y;
  return {crop.x + x, crop.y + y, rect.w, rect.h};
}

}  // namespace headrace
